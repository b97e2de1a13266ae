"""JointOpt: a network and the soft labels of its samples are optimised in turn."""
