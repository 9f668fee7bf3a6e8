"""Models: one YAML each, with its published `config.json` under `config`.  Data, no code.

name        what a person calls it
source      the page that holds the config
parameters  {value, source, note, rounded}: the published count of the language model; `rounded: true` where the maker
            prints only a rounded figure
config      the fields of config.json, verbatim (bookkeeping such as transformers_version may be left out)
"""
