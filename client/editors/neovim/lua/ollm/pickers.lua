--- Lists to choose from: sessions, what was said, branches, facts, files and models.

local chats = require("ollm.chat")
local rpc = require("ollm.rpc")
local target = require("ollm.target")
local text = require("ollm.text")
local ui = require("ollm.ui")

local M = {}

--- Items of a list. Longer ones are for search, not for reading.
local MAX_ITEMS = 100
--- Hits of a recall.
local MAX_HITS = 12

--- Opens the chat of a session, at a record if one is given.
---@param session_id string
---@param seq? integer
function M.open(session_id, seq)
  local chat = chats.for_session(session_id)
  chat:open()
  if seq then
    chat:go_to(seq, function(is_shown)
      if not is_shown then
        ui.info(("#%d is on another branch; :Ollm tree shows it"):format(seq))
      end
    end)
  end
end

--- Returns the line of a session in a list.
---@param session table
---@return string
function M.session_line(session)
  local parts = {
    text.clip(session.title ~= "" and session.title or "(no title)", 48),
    text.counted(session.messageCount or 0, "message"),
    text.ago(session.lastActivity),
  }
  if session.projectName then
    parts[#parts + 1] = text.clip(session.projectName, 24)
  end
  if session.status ~= "active" and session.status ~= "closed" then
    parts[#parts + 1] = session.status
  end
  parts[#parts + 1] = session.shortId
  return table.concat(parts, " · ")
end

--- Lets the user choose a session; words restrict the list to titles that have them.
---@param words string
---@param cursor? string
function M.sessions(words, cursor)
  local params = { limit = MAX_ITEMS, cursor = cursor, title = words ~= "" and words or nil }
  rpc.call("session.list", params, nil, ui.reporting(function(page)
    if #page.data == 0 then
      local reason = words ~= "" and " with these words in the title" or " yet; :Ollm chat begins one"
      return ui.info("no sessions" .. reason)
    end
    local items = page.data
    if page.nextCursor then
      items[#items + 1] = { cursor = page.nextCursor }
    end
    ui.pick(items, page.behind and "Sessions (the list is being rebuilt)" or "Sessions", function(session)
      return session.cursor and "older sessions ..." or M.session_line(session)
    end, function(session)
      if session.cursor then
        return M.sessions(words, session.cursor)
      end
      M.open(session.sessionId)
    end)
  end))
end

--- Finds what was said about a question in all sessions, and opens the session of the chosen message there.
---@param question string
function M.recall(question)
  if question == "" then
    return vim.ui.input({ prompt = "Recall: " }, function(words)
      if words and words:find("%S") then
        M.recall(words)
      end
    end)
  end
  local params = { query = text.utf8(question), scope = "all", limit = MAX_HITS }
  rpc.call("context.recall", params, nil, ui.reporting(function(found)
    if #found.data == 0 then
      local behind = found.behind and "; the newest messages are not indexed yet" or ""
      return ui.info("nothing was said about this" .. behind)
    end
    ui.pick(found.data, "Recall", function(hit)
      local title = text.clip(hit.title ~= "" and hit.title or "(no title)", 24)
      return ("%s · %s · %s"):format(title, text.ago(hit.at), text.one_line(hit.excerpt))
    end, function(hit)
      M.open(hit.sessionId, hit.seq)
    end)
  end))
end

--- Reads all pages of a tree.
local function read_tree(session_id, cursor, nodes, callback)
  rpc.call("session.tree", { sessionId = session_id, limit = 1000, cursor = cursor }, nil, ui.reporting(function(page)
    vim.list_extend(nodes, page.data)
    if page.nextCursor then
      return read_tree(session_id, page.nextCursor, nodes, callback)
    end
    callback(nodes, page.leaf)
  end))
end

--- Returns the line of a node of a tree.
local function node_line(node)
  local branches = node.children > 1 and (" (%d branches)"):format(node.children) or ""
  local label = node.label and " [" .. text.one_line(node.label) .. "]" or ""
  local mark = node.is_leaf and "▶" or node.active and "●" or "○"
  return ("%s #%d %s: %s%s%s"):format(mark, node.seq, node.role or node.type, text.clip(node.text, 60), label, branches)
end

--- Lets the user choose the message behind which the conversation goes on, the newest first.
function M.tree()
  target.with_session(function(session_id)
    read_tree(session_id, nil, {}, function(nodes, leaf)
      local items = {}
      for index = #nodes, 1, -1 do
        local node = nodes[index]
        node.is_leaf = node.seq == leaf
        if node.type == "message" or node.label or node.children > 1 then
          items[#items + 1] = node
        end
      end
      if #items == 0 then
        return ui.info("the session has no messages yet")
      end
      local chosen = vim.list_slice(items, 1, MAX_ITEMS)
      ui.pick(chosen, "Go on behind (● is on the active path)", node_line, function(node)
        M.branch(session_id, node.seq)
      end)
    end)
  end)
end

--- Moves the active leaf.
---@param session_id string
---@param seq integer
function M.branch(session_id, seq)
  rpc.call("session.branch", { sessionId = session_id, toSeq = seq }, nil, ui.reporting(function(moved)
    if not moved.seq then
      return ui.info("the conversation is there already")
    end
    ui.info(("the conversation goes on behind #%d; :Ollm undo takes this back"):format(moved.leaf or seq))
  end))
end

--- Lists the facts of the session; the chosen one can be forgotten.
function M.facts()
  target.with_session(function(session_id)
    rpc.call("context.facts", { sessionId = session_id, limit = MAX_ITEMS }, nil, ui.reporting(function(facts)
      if #facts.data == 0 then
        return ui.info("no facts yet: the daemon finds them in what you write, such as `The port is 6200.`")
      end
      ui.pick(facts.data, ("Facts (%d)"):format(facts.total), function(fact)
        return ("#%d %s"):format(fact.seq, text.one_line(fact.text))
      end, function(fact)
        ui.ask("Forget: " .. text.clip(fact.text, 60), { "keep it", "forget it" }, function(answer)
          if answer ~= "forget it" then
            return
          end
          local params = { sessionId = session_id, seq = fact.seq, index = fact.index }
          rpc.call("context.forgetFact", params, nil, ui.reporting(function()
            ui.info("forgotten; the message stays")
          end))
        end)
      end)
    end))
  end)
end

--- Lists the files that tools read or changed in the session, and opens the chosen one.
function M.files()
  target.with_session(function(session_id)
    rpc.call("session.files", { sessionId = session_id, limit = MAX_ITEMS }, nil, ui.reporting(function(files)
      if #files.data == 0 then
        return ui.info("no tool of this session read or changed a file")
      end
      ui.pick(files.data, ("Files (%d)"):format(files.total), function(file)
        local use = file.modifiedSeq and ("written in #%d"):format(file.modifiedSeq)
          or file.readSeq and ("read in #%d"):format(file.readSeq) or ""
        local disk = file.onDisk ~= "current" and " · " .. file.onDisk .. " on the disk" or ""
        return ("%s · %s%s"):format(text.one_line(file.path), use, disk)
      end, function(file)
        local is_absolute = vim.startswith(file.path, "/")
        local path = is_absolute and file.path or (files.root or ".") .. "/" .. file.path
        vim.cmd.drop(vim.fn.fnameescape(path))
      end)
    end))
  end)
end

--- Uses a model for the session from now on.
---@param name string
function M.use_model(name)
  local chat = chats.current()
  local function report()
    ui.info("the model is " .. text.one_line(name))
  end
  if chat and not chat.session then
    chat.model = name
    chat:draw_bar()
    return report()
  end
  target.with_session(function(session_id)
    rpc.call("session.update", { sessionId = session_id, model = name }, nil, ui.reporting(report))
  end)
end

--- Uses a model: the given one, or one of those that the servers have.
---@param name string
function M.model(name)
  if name ~= "" then
    return M.use_model(name)
  end
  rpc.call("model.list", {}, nil, ui.reporting(function(models)
    if #models.data == 0 then
      return ui.error({ message = "the model server has no model", hint = models.getSmallModel })
    end
    ui.pick(models.data, "Models", function(model)
      local window = model.window or model.trainedContext
      local parts = { text.one_line(model.model), model.parameterSize, window and text.grouped(window) .. " tokens" }
      return table.concat(vim.tbl_values(parts), " · ") .. (model.loaded and " · loaded" or "")
    end, function(model)
      M.use_model(model.model)
    end)
  end))
end

return M
