"""How ``format("pgonce")`` runs: what Spark calls, what tasks do, and the commit of what they hand over."""
