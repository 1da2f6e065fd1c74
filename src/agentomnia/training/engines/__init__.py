"""Engines that train a policy: `local` on one machine."""
