"""Who may do what: one readable file, signed by the authority. Pure.

``api.permissions`` makes the file, ``storage.key_files`` reads it.

rules     identities and rules, and what they decide
text      the file: its form, its bounds, what the authority signs, and how identities are written into it
decisions what the rules decide, remembered
in_force  what counts now, and newer versions that others hand on
"""
