// Linked with, but never where the dynamic linker looks.
extern "C" int FromAnAbsentLibrary() { return 1; }
