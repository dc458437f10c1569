"""`sirtakirun timeline merge|plot`: what can be done with a timeline's file afterwards."""

import argparse
import sys
from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Returns the exit code: 1 if a file cannot be read or written."""
    parser = argparse.ArgumentParser(prog="sirtakirun timeline", description="Works on files of --timeline-filename.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="merge|plot")
    text = "Puts timelines, traces of torch.profiler and profiles of TensorFlow (*.xplane.pb) into one trace."
    merging = actions.add_parser("merge", help=text, description=text)
    merging.add_argument("files", nargs="+", metavar="FILE")
    merging.add_argument("-o", "--output", required=True, metavar="OUT", help="the trace to write; OUT.gz compresses")
    text = "Draws the steps of all ranks over time with their parts, and one step with its exchanges."
    plotting = actions.add_parser("plot", help=text, description=text)
    plotting.add_argument("file", metavar="FILE")
    plotting.add_argument("-o", "--output", required=True, metavar="PNG")
    chosen = parser.parse_args(words)
    try:
        if chosen.action == "merge":
            from sirtaki.timeline import merge

            merge.merge(chosen.files, chosen.output)
        else:
            from sirtaki.timeline import plot

            plot.draw(chosen.file, chosen.output)
    except (ValueError, OSError) as error:
        print(f"sirtakirun: {error}", file=sys.stderr)
        return 1
    return 0
