// Routes some of UCX's system calls through our functions, because a few results mislead UCX.
#pragma once

namespace omnihvd {

// From now on, for every user of UCX in this process (further calls are harmless):
//   - A process that has no descriptors left for a moment keeps its peers and its listening
//     sockets. UCX would take a process that it cannot look up for dead, and close a listening
//     socket after any failed accept(). One descriptor is kept in reserve.
//   - Children do not hold UCX's sockets: exec closes them, and fork does. Else the peers would not
//     learn that this process has ended, for as long as such a child lives.
//   - Segments in /dev/shm never have a name, so that a killed process leaves none.
void steer_ucx_system_calls();

// Shuts down UCX's TCP connections to hosts that have vanished: their kernels have acknowledged
// nothing for as long as TCP's keep-alive waits on an idle connection, though they were asked. (A
// process that is stopped has a kernel that answers, so its connection stays. TCP_USER_TIMEOUT
// would end it once its buffers are full.) Any thread, now and then; it looks every two seconds.
void shut_silent_connections();

}  // namespace omnihvd
