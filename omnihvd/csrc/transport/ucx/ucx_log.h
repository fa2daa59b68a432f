// Redirects UCX's log to omnihvd's. UCX would write to standard output, which is the program's.
#pragma once

namespace omnihvd {

// From now on, errors and warnings of UCX (whoever uses it in this process) become warnings of
// omnihvd. Does nothing if the user steers UCX's log with UCX_LOG_LEVEL or UCX_LOG_FILE.
void take_over_ucx_log();

}  // namespace omnihvd
