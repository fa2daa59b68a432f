#include "session/while_waiting.h"

namespace omnihvd {
namespace {
thread_local void (*work_of_this_thread)() = nullptr;
}

WhileWaiting::WhileWaiting(void (*work)()) { work_of_this_thread = work; }
WhileWaiting::~WhileWaiting() { work_of_this_thread = nullptr; }
void (*WhileWaiting::work())() { return work_of_this_thread; }

}  // namespace omnihvd
