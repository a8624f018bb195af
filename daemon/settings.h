// weftd's configuration table: the one place a setting is declared.
#pragma once

#include "base/config.h"

namespace weft::daemon {

Config make_config();

}  // namespace weft::daemon
