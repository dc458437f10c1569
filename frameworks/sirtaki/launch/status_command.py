"""`sirtakirun status [job]`: prints the status of a running job of this user on this host."""

import argparse
from collections.abc import Sequence

from sirtaki.job.launcher import status
from sirtaki.launch import running_jobs


def main(words: Sequence[str]) -> int:
    """Returns 0 after printing a job's status; 1 if there is no job, or several to choose from."""
    parser = argparse.ArgumentParser(
        prog="sirtakirun status",
        description="Prints the status of a running job: for each rank the last collective that finished, the pending "
        "ones and since when, and the Python stacks. kill -USR1 of the launcher or of a rank prints the same.",
    )
    parser.add_argument(
        "job", nargs="?", type=int, help="process id of its sirtakirun; not needed if only one job runs"
    )
    wanted = parser.parse_args(words).job
    job = running_jobs.choose(wanted, "status")
    text = running_jobs.ask(job, status.STATUS) if job else ""
    if text:
        print(text, end="")
        return 0
    if job:
        running_jobs.explain(wanted, {}, "status")
    return 1
