"""The table of encodings under test: one entry drives every promise in test_modules.py.

To add an encoding, add its float64 reference to reference.py and its configurations to the file of its family.
"""

import cases_absolute
import cases_additive
import cases_contextual
import cases_grid
import cases_rotary
import posenc

FAMILIES = {
    "rotary": cases_rotary.CASES,
    "absolute": cases_absolute.CASES,
    "additive": cases_additive.CASES,
    "contextual": cases_contextual.CASES,
    "grid": cases_grid.CASES,
}
CASES = [case for family in FAMILIES.values() for case in family]

BASES = {"AbsoluteEncoding", "AdditiveEncoding", "RotaryEncoding", "ScoreEncoding", "OpCall", "ScoreCall", "ScoreTerms"}
ENCODINGS = set(posenc.nn.__all__) - BASES - {"Attention", "KVCache", "cpp"}
# Those of pictures, which have all of their tokens at once: no layer of theirs decodes.
GRIDS = {case.python for case in cases_grid.CASES}
