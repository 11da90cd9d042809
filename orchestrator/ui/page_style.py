"""The style sheet of a report: light and dark, narrow screens, and paper."""

STYLE = """
:root { color-scheme: light dark; --text: #1c1c1c; --soft: #555; --page: #fff; --card: #f5f6f7; --line: #ddd;
  --bad: #b3261e; --bad-text: #b3261e; --bad-card: #fdf0ef; --good: #00734f; --busy: #0060a0; --odd: #8a5a00;
  --bar: #b9c6d2;
  --busy-text: #0060a0; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --soft: #a5a9ad; --page: #15181b; --card: #20252a;
  --line: #3a4147; --bad-text: #ff8a80; --bad-card: #351d1b; --bar: #47535e;
  --busy-text: #7ab8f0; }
  polyline, circle, figcaption small span:not(.key) { filter: brightness(1.5); }
  .heat rect, .key { filter: brightness(.6) saturate(1.4); } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 1.5rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page); }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.state { display: inline-block; padding: .1rem .6rem; border-radius: .3rem; color: #fff; background: #555; }
.succeeded { background: var(--good); } .failed, .lost { background: var(--bad); }
.killed, .stopped { background: var(--odd); }
.running, .starting, .suspect, .restarting, .waiting, .stopping { background: var(--busy); }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.tile { background: var(--card); border-radius: .4rem; padding: .45rem .8rem; min-width: 4rem; }
.tile b { display: block; font-size: 1.05rem; } .tile span { color: var(--soft); font-size: .82rem; }
.cause, .card { border-left: 4px solid var(--bad); background: var(--bad-card); padding: .7rem 1rem; margin: 1rem 0; }
.card { border-color: var(--bar); background: var(--card); } .cause p, .card p { margin: .4rem 0; }
.cause pre, .card pre { margin: .6rem 0 0; }
.scroll { overflow-x: auto; } .scroll + .scroll { margin-top: 1rem; } table { border-collapse: collapse; }
td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid var(--line); } td.failure { color: var(--bad-text); }
.rows td:not(:last-child), th { white-space: nowrap; }
pre { background: var(--card); padding: .7rem; font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; margin: .6rem 0; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; flex: 1 1 340px; max-width: 580px; }
figure.wide { max-width: none; margin-top: 1rem; } figcaption { font-weight: 600; }
small { font-weight: normal; color: var(--soft); } .none { color: var(--soft); }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
polyline { fill: none; stroke-width: 1.5; } .grid { stroke: var(--line); }
.heat svg { min-width: 560px; } .attempts { position: relative; height: 34px; }
.attempts div { position: absolute; box-sizing: border-box; print-color-adjust: exact; }
.attempts .attempt { top: 6px; height: 22px; border-right: 2px solid var(--page); border-radius: 3px;
  background: var(--bar); overflow: hidden; white-space: nowrap; font-size: 12px; line-height: 22px;
  min-width: 4px; container-type: inline-size; }
.attempts b { font-weight: normal; margin-left: 5px; } .attempts .event { top: 0; width: 3px; height: 34px;
  background: var(--bad-text); }
@container (max-width: 68px) { .attempts span { display: none; } }
@container (max-width: 18px) { .attempts b { display: none; } }
.key { display: inline-block; width: .9rem; height: .7rem; }
nav { margin: .6rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; } nav a { color: var(--busy-text); }
footer { margin-top: 2.5rem; }
@media (max-width: 600px) { .tiles { display: grid; grid-template-columns: 1fr 1fr; } .tile { min-width: 0;
  overflow-wrap: anywhere; } .tile b { font-size: 1rem; }
  .rows td:not(:last-child) { white-space: normal; } }
@media print { body { max-width: none; margin: 0; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; }
  nav { display: none; } }
"""
