// Redirects a function that loaded libraries import, by writing their global offset tables (GOT).
//
// A library calls an imported function through a GOT slot that the dynamic linker has filled
// (relocations JUMP_SLOT and GLOB_DAT). Writing another address there redirects that library
// alone, in whatever order things were loaded. So it is with the address of a variable, as a
// vtable. A function that was linked in statically, or is not used at all, has no slot and cannot
// be hooked: the functions below tell.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace omnihvd {

// The paths of the loaded shared libraries whose path contains `text`, in load order.
std::vector<std::string> loaded_libraries(const std::string& text);

// Whether the loaded library with this path has a GOT slot for `symbol`. Error: not loaded.
bool imports(const std::string& library, const std::string& symbol);

// What the loaded library's GOT slot for `symbol` holds: a function's address, or a variable's.
// Null: it has no such slot. Error: not loaded.
void* imported(const std::string& library, const std::string& symbol);

// The path of the library in which `library` finds `symbol`: itself or one that it depends on.
// Error: not loaded, or not found.
std::string provider(const std::string& library, const std::string& symbol);

// From now on the loaded libraries whose path contains `text` call `replacement` for `symbol`,
// save the library that holds `replacement`. Returns the paths of those that import the symbol;
// none: nothing was hooked. Calling again is harmless, and hooks what was loaded since.
std::vector<std::string> install_hook(const std::string& text, const std::string& symbol,
                                      void* replacement);

// (library path, symbol) of the hooks in force.
std::set<std::pair<std::string, std::string>> installed_hooks();

// Gives the libraries that call `symbol` through a hook the function back that they called before.
void remove_hooks(const std::string& symbol);

}  // namespace omnihvd
