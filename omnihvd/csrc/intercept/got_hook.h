// Redirects a function that loaded libraries import by writing their global offset tables (GOT).
//
// A library calls an imported function through a GOT slot that the dynamic linker has filled
// (relocations JUMP_SLOT and GLOB_DAT). Writing another address there redirects that library alone,
// whatever the load order. The address of a variable, such as a vtable, is redirected in the same
// way. A function that was linked in statically, or is never used, has no slot and cannot be
// hooked: the functions below report that.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace omnihvd {

// Paths of the loaded shared libraries with `text` in their path, in load order.
std::vector<std::string> loaded_libraries(const std::string& text);

// Does the loaded library with this path have a GOT slot for `symbol`? Throws Error if it is not
// loaded.
bool imports(const std::string& library, const std::string& symbol);

// The content of the loaded library's GOT slot for `symbol`: the address of a function or a
// variable. Null if it has no such slot. Throws Error if the library is not loaded.
void* imported(const std::string& library, const std::string& symbol);

// Path of the library in which `library` finds `symbol`: itself, or one that it depends on. Throws
// Error if `library` is not loaded, or the symbol not found.
std::string provider(const std::string& library, const std::string& symbol);

// Makes loaded libraries with `text` in their path call `replacement` for `symbol` from now on,
// except the library that holds `replacement`. Returns the paths of those that import the symbol;
// empty if nothing was hooked. Calling it again is harmless, and hooks libraries loaded since.
std::vector<std::string> install_hook(const std::string& text, const std::string& symbol,
                                      void* replacement);

// (library path, symbol) of each hook in force.
std::set<std::pair<std::string, std::string>> installed_hooks();

// Gives all libraries hooked for `symbol` the function back that they called before.
void remove_hooks(const std::string& symbol);

}  // namespace omnihvd
