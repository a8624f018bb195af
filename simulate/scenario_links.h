// Measured ways between the sites of a scenario, from a links.csv. Private to the scenario's
// reader. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "simulate/scenario.h"

namespace weft::simulate {

// Adds what the file says of the scenario's sites to measured_links and notes. A direction without
// a row or [[link]] is as its opposite. Errors name the line; kInvalid also where two rows say
// different things of one direction.
Status add_measured_links(std::string_view csv, const std::string& source, Scenario& scenario);

}  // namespace weft::simulate
