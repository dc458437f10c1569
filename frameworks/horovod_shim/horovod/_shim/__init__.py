"""All that the package adds to Sirtaki: module names, the check for a real Horovod, and a few helpers."""
