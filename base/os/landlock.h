// Landlock: files this process may open from now on, see jail.h. Private to base/os.
#pragma once

#include "base/os/jail.h"

namespace weft::os {

// Binds the calling thread and threads it starts. The value says what is in force; an error says
// why nothing is. Needs no_new_privs or CAP_SYS_ADMIN.
Result<std::string> restrict_files(const JailPolicy& policy);

}  // namespace weft::os
