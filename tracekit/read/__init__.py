"""From bytes somebody recorded to frames of events, in this order.

Which files: sources, cycles. What is in one: content (which compression it has), batches (text cut between events),
decode, with events (what is looked at), columns and arguments (frames), clock (exact times), facts (what the file says
of itself). Where text is damaged: salvage finds what is whole, mend repairs what is not, findings tells of both. All
files together: ranks, traces. From one opening to the next: cache, with entries, which the tables of a run use too.
"""
