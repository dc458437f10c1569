"""The timeline of a job: spans of all ranks in one file, for viewers of traces (docs/timeline.md)."""
