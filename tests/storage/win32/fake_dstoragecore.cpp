// The other DLL of DirectStorage: dstorage.dll (fake_dstorage.cpp) asks only whether it was loaded before.
extern "C" __declspec(dllexport) int fake_dstoragecore() { return 1; }
