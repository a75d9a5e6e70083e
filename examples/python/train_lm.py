"""Context extension on real text: `python examples/python/train_lm.py`, see --help."""

import dataclasses
import os
import sys
import time

# Threads that spin while they wait cost a busy machine far more than they save. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console

import posenc
from lm.counting import counts, draw_counting
from lm.data import Corpus, DataError, check_size, load_corpus, validation_segments
from lm.encodings import ENCODINGS, EncodingError
from lm.evaluate import Score, evaluate
from lm.interrupt import Interrupt, interruptible
from lm.model import LanguageModel
from lm.options import LENGTH_FACTORS, Options, parse_options
from lm.report import plot, print_table, progress, write_json
from lm.train import DivergedError, TrainResult, train
from lm.weights import WeightsError, load_weights, save_weights


def main(arguments: list[str] | None = None) -> int:
    """Runs the demonstration; returns the exit status."""
    options = parse_options(arguments)
    console = Console()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with interruptible() as interrupt:
            run(options, console, interrupt)
    except (DataError, WeightsError, EncodingError, DivergedError) as error:
        return fail(str(error))
    except OSError as error:
        return fail(f"{error.filename or options.out}: {error.strerror}")
    return 130 if interrupt.ever_asked else 0


def fail(message: str) -> int:
    """Says in one line why there is no result."""
    print(f"train_lm: error: {message}", file=sys.stderr)
    return 1


def run(options: Options, console: Console, interrupt: Interrupt) -> None:
    """Trains and scores each encoding, then reports."""
    torch.set_num_threads(options.threads)
    begin = time.monotonic()
    models = starting_models(options)
    context = models[0].options.context
    corpus = load_corpus(options.data)
    lengths = [factor * context for factor in LENGTH_FACTORS]
    check_size(corpus, context, lengths[-1])
    segments = validation_segments(corpus.validation, options.windows, lengths[-1])
    describe(console, corpus, models[0], options)

    trained: dict[str, TrainResult] = {}
    scores: list[Score] = []
    for model in models:
        if interrupt.ever_asked:
            break
        encoding = model.options.encoding
        trained[encoding] = train_and_save(model, corpus, options, console, interrupt)
        interrupt.clear()
        scores += score(model, segments, lengths, options, console, interrupt)

    if scores:
        print_table(console, scores, context, lengths)
    facts = {
        "program": "python",
        "posenc": posenc.__version__,
        "torch": torch.__version__,
        "data": {
            "path": str(corpus.path),
            "files": corpus.files,
            "train_bytes": len(corpus.train),
            "validation_bytes": len(corpus.validation),
            "scored_bytes": segments[:, 1:].numel(),
        },
        "model": {
            **{name: getattr(models[0].options, name) for name in ("layers", "width", "heads")},
            "context": context,
        },
        "seed": options.training.seed,
        "threads": options.threads,
        "seconds": round(time.monotonic() - begin, 3),
        "interrupted": interrupt.ever_asked,
    }
    write_json(options.out / "results.json", facts, trained, scores)
    if scores:
        plot(scores, context, options.out / "results.png")
    for model in filter(counts, models):
        draw_counting(model, segments[0], options.out / f"counted-{model.options.encoding}.png")
    kept = "numbers, plot and weights are" if scores else "numbers and weights are"
    console.print(f"{kept} in {options.out}", highlight=False, soft_wrap=True)


def starting_models(options: Options) -> list[LanguageModel]:
    """The models to train: saved weights, or one new model for each encoding, all from the same seed."""
    if options.weights:
        return [load_weights(options.weights)]
    models = []
    for encoding in options.encodings:
        torch.manual_seed(options.training.seed)
        models.append(LanguageModel(options.model(encoding)))
    return models


def describe(console: Console, corpus: Corpus, model: LanguageModel, options: Options) -> None:
    """Prints what is about to be trained on what."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    left_out = f", {corpus.files_left_out} more left out" if corpus.files_left_out else ""
    console.print(
        f"{corpus.path}: {corpus.files} files{left_out}, {len(corpus.train) / 1e6:.2f} MB to train on, "
        f"{len(corpus.validation) / 1e6:.2f} MB held out\n"
        f"{model.options.layers} layers, width {model.options.width}, {model.options.heads} heads, "
        f"{parameters / 1e6:.2f} million parameters, context {model.options.context}\n"
        f"{options.training.steps} steps of {options.training.batch} windows, "
        f"at most {options.training.time_limit:g} s",
        highlight=False,
        soft_wrap=True,
    )


def train_and_save(
    model: LanguageModel, corpus: Corpus, options: Options, console: Console, interrupt: Interrupt
) -> TrainResult:
    """Trains with a progress bar; the weights are on disk when it returns."""
    training = dataclasses.replace(options.training, context=model.options.context)
    path = options.out / f"weights-{model.options.encoding}.pt"
    if training.steps == 0:
        return TrainResult()
    with progress(console, f"training {model.options.encoding}", training.steps) as advance:
        result = train(
            model, corpus.train, training, lambda step, loss: advance(step, f"loss {loss:.3f} bits/byte"), interrupt
        )
    save_weights(model, path)
    if result.stopped:
        console.print(
            f"{result.stopped} after {result.steps} of {training.steps} steps; weights kept in {path}", soft_wrap=True
        )
    return result


def score(
    model: LanguageModel,
    segments: torch.Tensor,
    lengths: list[int],
    options: Options,
    console: Console,
    interrupt: Interrupt,
) -> list[Score]:
    """Scores every scaling and length with a progress bar."""
    scores: list[Score] = []
    # An encoding without frequencies has nothing to scale.
    scalings = options.scalings if ENCODINGS[model.options.encoding].rescalable else ["none"]
    with progress(console, f"scoring {model.options.encoding}", len(scalings) * len(lengths)) as advance:
        for result in evaluate(model, segments, scalings, lengths, interrupt):
            scores.append(result)
            found = "not defined" if result.bits_per_byte is None else f"{result.bits_per_byte:.3f} bits/byte"
            advance(len(scores), f"{result.scaling} at {result.length}: {found}")
    return scores


if __name__ == "__main__":
    sys.exit(main())
