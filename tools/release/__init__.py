"""Releasing one distribution: version, changelog, files, rehearsal, commit, tag, upload."""
