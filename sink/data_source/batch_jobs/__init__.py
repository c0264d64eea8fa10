"""How does ``df.write.format("pgonce")`` run: a batch job, whose rows are published once for each key?"""
