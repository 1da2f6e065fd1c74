"""PRD-guided self-evolution (paper, section 6): diagnosis, PRDs, and the orders that aim the next round."""
