"""The compiled event loop that the policy, augmented greedy and augmented trees share."""
