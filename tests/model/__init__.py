"""A model of a whole run: nodes with an election, a gang and a guard each, in a world in which everything fails.

world.py   the world: true time, clocks that drift, a network that loses, delays, doubles and cuts, and the faults
node.py    a node: its disk, its recorder with election.step, its guard
gangs.py   what the head decides with the log: a small gang of the model's own, which may begin at any moment
real_gang.py   the same with gang.step
rules.py   what must hold at any moment, and at the end
walk.py    random scenarios, and the shortest that still breaks a rule
"""
