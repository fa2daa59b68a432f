// The features of this CPU. Each test covers everything that CMakeLists.txt lets the compiler use
// in files for one instruction set, since it may use it anywhere there.
#pragma once

namespace omnihvd {

bool cpu_has_avx2();    // with FMA, F16C, BMI, POPCNT
bool cpu_has_avx512();  // F, BW, VL, DQ, VBMI, VBMI2, and all of the above

}  // namespace omnihvd
