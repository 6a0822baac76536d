// A library, but not ours: it needs nothing, and for one test something that will not be there.
extern "C" int FromAnAbsentLibrary();

extern "C" int Foreign() {
#ifdef NEEDS_AN_ABSENT_LIBRARY
  return FromAnAbsentLibrary();
#else
  return 1;
#endif
}
