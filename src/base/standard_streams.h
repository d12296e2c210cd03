#pragma once

namespace megatron {

// Opens /dev/null at each of the file descriptors 0, 1 and 2 that is closed, so that no file opened
// later gets that number and receives printed output. Input from it and output to it still fail, as
// on a closed descriptor. Must be called before anything is opened.
void occupy_standard_streams();

}  // namespace megatron
