// The version of weft; CMakeLists.txt reads it from here.
#pragma once

namespace weft {
inline constexpr const char* kVersion = "0.1.0";
}
