"""How this process takes part in a job: start, link to its supervisor, children, and end."""
