"""How a diagnosis is made of logs, in this order (engine.py puts it together). All of it is pure.

transcript   logs of any launcher          -> who said which line, when
own          lines                         -> those of the last attempt, without what our own recorder says
tracebacks   lines                         -> exceptions, each with its chain and rank
exits        lines                         -> how processes ended
scene        these                         -> what is seen as a whole: hosts, ranks, order
causes       knowledge/*.yaml              -> signatures, meaning, fix, precedence
signs        scene and causes              -> suspects; hangs and dumps say who was missing from a collective
refine       suspects and scene            -> what several lines tell together and no single one does
"""
