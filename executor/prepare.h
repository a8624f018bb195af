// `weft-worker prepare`: what a broker prepares for a job, from a model file and into a folder:
// graph.txt, eval.txt (text forms), plan.json and the raw weights. For tests and for looking at a
// worker without a cluster; the real planner stands in broker/.
#pragma once

#include "base/os/jail.h"

namespace weft::executor {

// weft-worker prepare MODEL.pt2 --out DIR [--stages K] [--schedule gpipe|1f1b]
// argv[0] is the program, argv[1] "prepare". Exit: 0 done, 1 failed, 2 wrong usage.
int prepare_command(int argc, char** argv, os::JailMode jail);

}  // namespace weft::executor
