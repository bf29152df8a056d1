"""Pure functions from the observed facts to a plan. They use no clock, socket or file.

Reading order:
    plan              the whole decision
    applies           which children to write
    zero              whether there are engines at all
    engine_rollout    which engine pods to replace, and when
    lost_pods         which pods to delete after the loss of a node
    waiting_ranks     which pods to delete because their rank finds no room
    frontend_rollout  the same for frontend pods
    service_status    the status that users see
    conditions        its conditions, with the functions that choose their reasons
    problem           problems, and how messages name several of them
    rank_status       its entry for each engine rank
    text              a plan as text
"""
