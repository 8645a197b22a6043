"""The mesh's cores in seeded worlds: any topology, churn, slow and dead peers, originals beside them.

network     connections as TCP gives them: ordered and whole until they break, noticed or not
hosts       endpoints: cores, what carries out their actions, and their subscribers
originals   a model of the original, which forwards without ids or limits
record      what was published, delivered and linked
checkers    what must hold
world       one world, its faults, its end
"""
