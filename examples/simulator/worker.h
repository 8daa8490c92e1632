// The worker process: runs the scheduler's plans on a device, and captures its router's picks.
#pragma once

namespace demo {

// Serves the scheduler at the other end of the socket `fd` until that closes. Returns the exit
// status; an error goes to the scheduler as text.
int run_worker(int fd);

}  // namespace demo
