// UCX's log, in ours: it would write to standard output, which is the program's.
#pragma once

namespace omnihvd {

// From now on, what UCX (anybody's in this process) has to say as error or warning becomes a
// warning of ours. Not when the user steers UCX's log with UCX_LOG_LEVEL or UCX_LOG_FILE.
void take_over_ucx_log();

}  // namespace omnihvd
