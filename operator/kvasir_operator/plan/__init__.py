"""From the observed facts to a plan: pure functions, without a clock, a socket or a file.

Read in this order: `plan` (the whole decision), `applies` (which children to write), `engines` and `frontends`
(their roll-outs), `status` (what users see), `text` (a plan as text).
"""
