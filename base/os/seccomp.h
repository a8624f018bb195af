// The system-call filter of a jail, see jail.h. Private to base/os.
#pragma once

#include <string>

#include "base/result.h"

namespace weft::os {

// Binds every thread of this process. The value says what is in force. Needs no_new_privs.
Result<std::string> restrict_calls();

}  // namespace weft::os
