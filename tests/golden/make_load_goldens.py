#!/usr/bin/env python3
# Writes tests/golden/load/statistics.json: what numpy says of samples that the load tool's statistics are tried
# on: percentiles (linear), mean, median, standard deviation.
#     pip install numpy
#     tests/golden/make_load_goldens.py
import json
import pathlib

import numpy

PERCENTILES = [0, 1, 12.5, 50, 90, 95, 99, 99.9, 100]


def case(name, samples):
    samples = numpy.array(samples, dtype=numpy.float64)
    return {
        "name": name,
        "samples": samples.tolist(),
        "mean": numpy.mean(samples),
        "median": numpy.median(samples),
        "std": numpy.std(samples),
        "percentiles": [[p, numpy.percentile(samples, p)] for p in PERCENTILES],
    }


def main():
    random = numpy.random.default_rng(20)
    cases = [
        case("one", [3.25]),
        case("two", [1.0, 2.0]),
        case("equal", [7.0] * 5),
        case("ten in no order", [5, 3, 9, 1, 7, 2, 8, 4, 6, 10]),
        case("exponential", random.exponential(100.0, 237).round(6)),
        case("log-normal", random.lognormal(3.0, 1.5, 1000).round(6)),
    ]
    path = pathlib.Path(__file__).parent / "load" / "statistics.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"numpy": numpy.__version__, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()
