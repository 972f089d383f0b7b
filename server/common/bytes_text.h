// Sizes as people read them.

#pragma once

#include <string>

namespace moe {

// "1.5 GB", three digits.
std::string BytesText(double bytes);

}  // namespace moe
