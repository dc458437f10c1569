"""Elastic jobs: hosts and processes come and go, and the job goes on (docs/elastic.md)."""
