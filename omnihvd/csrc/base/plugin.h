// Libraries that a job loads only if it uses them, such as libomnihvd_innetwork. Each names its
// build, and registers what it adds: transports, arithmetic, sums.
#pragma once

#include <string>

namespace omnihvd {

// Changes with each header (CMakeLists.txt): libraries with the same id fit together.
std::string build_id();

// Loads a library, once in a process, and has it register what it adds. Throws Error if it is not
// there, cannot be loaded, or is of another build. Any thread.
void load_plugin(const std::string& path);
// The same, for the library libomnihvd_NAME.so that lies beside libomnihvd.so.
void load_part(const std::string& name);

// The word of OMNIHVD_WAY for the algorithm that a plugin has registered; empty: none has.
std::string& plugin_way();

}  // namespace omnihvd

// At the end of one file of such a library: `registers` is a void function without arguments.
#define OMNIHVD_PLUGIN(registers)                                                          \
  extern "C" __attribute__((visibility("default"))) const char omnihvd_plugin_build_id[] = \
      OMNIHVD_BUILD_ID;                                                                    \
  extern "C" __attribute__((visibility("default"))) void omnihvd_plugin_register() { registers(); }
