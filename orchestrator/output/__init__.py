"""Lines: assemble, merge, mask, fold, and tame escape sequences.

intake          pieces of streams -> whole lines of all hosts, in order
lines           a line; LineAssembler, Merger, and Painter, which puts the tag (host, rank) before it
pipeline        stages and their one clock
harmless        hides warnings that mean nothing in a run that works
bars            keeps back states of progress bars
epochs          notices that steps begin again in each epoch
rates           tells a rate of all ranks from those of single ranks
torchrun_noise  shortens torchrun's stack traces
folding         folds equal lines of many ranks
mask            hides secrets
terminal        tames escape sequences
streams         stdout and stderr, whose failures are errors for users
console         messages of the program itself
span            --since and --until
report_file     recognises the files of `report`
finding         what `check` and `diagnose` report
"""
