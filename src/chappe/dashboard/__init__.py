"""The dashboard: sources that look at members, threads that run them, and pages for a browser.

``sources/`` fill the snapshot contract of ``chappe.observing``; ``watching`` runs each in a thread of its own and
merges what they see; ``records`` and ``entries`` read on demand what topics, data stores and maps hold; ``server``
lets browsers in; ``pages/`` is what they show. Only ``server`` and ``pages/`` need the extra ``dashboard``.
"""
