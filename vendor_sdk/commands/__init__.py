"""Commands of ``vendor-sdk`` with more to them than a listing, a module each, imported when they are asked for."""
