// Reading the fields of a protobuf message one by one, as strictly as
// protobuf's own parser does: CodedInputStream and WireFormatLite take tags and
// lengths of up to ten bytes and cut them to 32 bits, so that malformed
// messages would pass.

#pragma once

#include <cstdint>

#include "google/protobuf/io/coded_stream.h"

namespace moe {

// The next tag; 0 at the end of the message, and for a malformed one: then
// input.ConsumedEntireMessage() is false.
uint32_t ReadTag(google::protobuf::io::CodedInputStream& input);

// The length of a field. False: malformed, or the field would end behind what
// is around it, so that nobody makes room for what does not come. Requires: the
// input has a limit.
bool ReadLength(google::protobuf::io::CodedInputStream& input, int* length);

// Reads the value of a field after its tag, and copies both to `output` if it
// is not null. False: malformed. Requires: the input has a limit.
bool SkipField(google::protobuf::io::CodedInputStream& input, uint32_t tag,
               google::protobuf::io::CodedOutputStream* output);

}  // namespace moe
