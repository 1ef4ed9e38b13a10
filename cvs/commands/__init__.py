"""The commands, one module each: `add` declares its arguments, its handler does the work.

Modules are imported at every start, so what a command needs beside the standard library it imports itself.
"""
