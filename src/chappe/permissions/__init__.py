"""Permissions: one readable file, signed by the authority. Pure.

``api.permissions`` makes the file, ``storage.key_files`` reads it.

rules     identities and rules, and what they decide, remembered
text      the file: its form, its bounds, what the authority signs, how identities are written into it, and newer
          versions that others hand on
"""
