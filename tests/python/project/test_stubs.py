"""The type stubs of posenc._C describe the extension that was built: names, parameters, their kinds and defaults."""

import sys

from processes import run


def test_stubs_of_the_extension_are_complete_and_true(tmp_path):
    # Without torch's own types: to read them all takes longer than everything else here.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    checked = run(sys.executable, "-m", "mypy.stubtest", "posenc._C", "--mypy-config-file", config, cwd=tmp_path)
    assert "Success" in checked
