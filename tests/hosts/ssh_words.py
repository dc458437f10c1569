"""How a stand-in for ssh, a program in Python, reads its command line and refuses hosts as ssh does."""

# To be formatted with `python` and `hosts` (whatever holds the known names). Leaves `words`: the host and the command.
READ_WORDS = """\
#!{python} -IS
import os, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    if words[0] == "-p":
        sys.stderr.write("ssh: connect to host " + words[-2] + " port " + words[1] + ": Connection refused\\n")
        sys.exit(255)
    del words[: 2 if words[0] in ("-i", "-o", "-l") else 1]
hosts = {hosts!r}
if words[0] not in hosts:
    sys.stderr.write("ssh: Could not resolve hostname " + words[0] + ": Name or service not known\\n")
    sys.exit(255)
"""
