-- Record that a coordinator serves the jobs of a bucket.
-- @include parts/clock
clock.attend(clock.now())
return {map = {}}
